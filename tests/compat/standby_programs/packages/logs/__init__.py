import logging

logging.getLogger("logs.utils.first")
