WHO = "the user"
