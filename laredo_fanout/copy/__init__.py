"""Tables copied while the stream goes on, and copied anew."""
