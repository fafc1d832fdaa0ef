import helpers_mod

helpers_mod.attend()
