"""Generated messages of the training control plane; the .proto files are the source."""
