// Package fault kills the real pando on a virtual host, at every step that matters and under traffic, and holds what is
// left against what Pando promises: other instances go on serving, nothing is started twice, no acknowledged commit is lost,
// nothing is left behind. The steps are failpoints (pando.Failpoint) of a build with the tag failpoints; in a shipped build
// they are nothing.
package fault
