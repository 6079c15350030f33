//! Says from the effects, the history and the queue alone whether a promise was broken.
