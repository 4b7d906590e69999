"""Images and sound, through a projector beside the model. This package is imported only if there is one."""
