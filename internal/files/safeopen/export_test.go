package safeopen

// OpenThenLook is for tests.
var OpenThenLook = openThenLook
