"""What a program written for TensorFlow or Keras is told where its names or arguments differ."""
