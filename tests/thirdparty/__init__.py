"""What other projects do on top of verl, in small pieces of our own writing, on verl's real code: stock beside ours."""
