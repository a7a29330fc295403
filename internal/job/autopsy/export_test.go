package autopsy

// For tests of what is not exported.
var ParsePySpy = parsePySpy
