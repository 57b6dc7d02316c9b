import decimal
