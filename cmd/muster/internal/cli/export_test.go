package cli

// StoreCommand is for tests.
var StoreCommand = storeCommand
