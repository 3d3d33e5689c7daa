"""CustomResourceDefinitions, generated from the msgspec structs of the model.

The structs are the only place where a field is declared; this room turns them into the structural
schemas that an API server accepts, with the rules that a server has to enforce.
"""
