import logging
import os
import sys
import warnings
os.environ.setdefault("SET_BY_IMPORT", "yes")
sys.path.append("/set/by/import")
warnings.filterwarnings("ignore", message="set by import")
logging.getLogger("setter").setLevel(logging.ERROR)
logging.getLogger("setter").addHandler(logging.NullHandler())
