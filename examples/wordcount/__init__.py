"""A package as entrypoint: the workers count the words of some files between them.

python -m lllaunch +exp=module
"""
