import tempfile
folder = tempfile.mkdtemp()
file = tempfile.NamedTemporaryFile()
