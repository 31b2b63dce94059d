"""What proposes a token tree, and says what each of its tokens was drawn from."""
