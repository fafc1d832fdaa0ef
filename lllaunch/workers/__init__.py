"""The workers of one attempt: started, signalled, ended; their files, and what is shown of them."""
