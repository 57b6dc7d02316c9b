VALUE = "second"
