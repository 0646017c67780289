"""Worker processes: started with a socket, called like objects, watched, and ended.

A worker is a plain class with async methods that does not know its machine.
"""
