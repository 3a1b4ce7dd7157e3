package decide_test

import "pando.run/pando/control/decide/decidetest"

// What the tables of decidetest have, by its short name.
var web, t0 = decidetest.Web, decidetest.T0
