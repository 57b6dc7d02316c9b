import sys
print("printed while it is imported")
print("and to stderr", file=sys.stderr)
