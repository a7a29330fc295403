package harmless

// OpenThenLook is for tests.
var OpenThenLook = openThenLook
