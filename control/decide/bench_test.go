package decide_test

import "pando.run/pando/control/decide/decidetest"

// The service and the beginning of the tables of decidetest.
var web, t0 = decidetest.Web, decidetest.T0
