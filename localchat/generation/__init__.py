"""A request on its way to the engine and back: prompt, constraint, generations, output events, usage."""
