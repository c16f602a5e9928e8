"""The room for people: requests and answers as text to read. It decides nothing and changes nothing."""
