"""Models for tables, B×features. They have no feature map: a table has no places."""
