import logging

logging.getLogger("logs.utils.second")
