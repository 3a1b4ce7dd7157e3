// Package fault kills the real pando on a virtual host, at every important step and under traffic.
// It then checks Pando's promises: other instances continue to serve, nothing is started twice, no
// acknowledged commit is lost, nothing is left behind.
//
// The steps are failpoints (failpoint.Hit) of a build with the tag failpoints. A shipped build
// has none.
package fault
