"""The verbs of ``python -m lllaunch``, each with ``main(argv)``, imported when it is called."""
