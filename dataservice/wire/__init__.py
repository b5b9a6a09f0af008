"""Generated messages of the control plane; the .proto files are the source."""
