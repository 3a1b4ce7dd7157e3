package cli

// AdriftHelp says what becomes of instances that run without a record since a restore.
const AdriftHelp = "the restored backup is older. `pando deploy` of the same spec within 10 minutes of the " +
	"restore brings them back; after any other deploy, `pando rm` of their service ends them too"
