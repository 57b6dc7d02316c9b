import os
RANK = int(os.environ.get("RANK", -1))
