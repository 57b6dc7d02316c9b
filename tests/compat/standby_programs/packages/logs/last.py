import logging

logging.getLogger("logs.utils").setLevel(logging.ERROR)
