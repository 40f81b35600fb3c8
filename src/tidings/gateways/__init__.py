"""Other doors to the same broker. A door is a client of the bus that speaks another protocol to the world."""
