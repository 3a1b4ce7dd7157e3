// Package sim holds the simulation: the unchanged control loop and agents over driver/sim, in
// virtual time (testing/synctest). A seed determines the requests of applications and operators,
// and the faults with their times. The run is then checked against the rules that always hold.
//
// It never touches a file, a socket or the kernel. One seed gives the same requests and the same
// faults at the same virtual times. It almost always gives the same run, byte by byte
// (TestASeedIsOneRun). No result depends on the order of a map, on a select, or on the order of
// draws. Two things remain with the runtime: goroutines that it preempts and timers that end at the
// same instant.
//
// Some runs make the calls of all drivers fail at random (TestDriversThatFail).
//
// PANDO_SEED runs one seed. PANDO_RUNS sets the number of runs (`make soak N=…`).
package sim
