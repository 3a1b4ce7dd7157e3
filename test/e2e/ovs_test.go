package e2e

import (
	"fmt"
	"strings"
	"testing"

	"pando.run/pando/lab/labtest"
)

// startSwitch runs an Open vSwitch on a host, in a folder of its own, and returns the folder.
func startSwitch(t *testing.T, p *labtest.Pando, host string) string {
	t.Helper()
	dir := p.Dir + "/ovs-" + host
	script := func(text string) { p.Must(host, "sh", "-ec", strings.ReplaceAll(text, "@", dir)) }
	script(`mkdir -p @
		export OVS_RUNDIR=@ OVS_LOGDIR=@
		ovsdb-tool create @/conf.db /usr/share/openvswitch/vswitch.ovsschema
		ovsdb-server @/conf.db --remote=punix:@/db.sock --pidfile --detach --log-file -vconsole:off
		ovs-vsctl --db=unix:@/db.sock --no-wait init`)
	runSwitch(p, host, dir)
	t.Cleanup(func() {
		p.Run(host, "sh", "-c", strings.ReplaceAll(
			`kill $(cat @/ovs-vswitchd.pid) $(cat @/ovsdb-server.pid)`, "@", dir))
	})
	return dir
}

func runSwitch(p *labtest.Pando, host, dir string) {
	p.Must(host, "sh", "-ec", fmt.Sprintf("OVS_RUNDIR=%[1]s OVS_LOGDIR=%[1]s exec ovs-vswitchd "+
		"unix:%[1]s/db.sock --pidfile --detach --log-file -vconsole:off", dir))
}

// A service is steered by Open vSwitch: from the network, from its host, over a change of its
// scale, without the agent, and after the death of the switch.
func TestAServiceBehindOpenVSwitch(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"ovs", "ovs-group"} {
		t.Run(way, func(t *testing.T) {
			p := labtest.UpWith(t, labtest.Options{Idle: true})
			host := p.Host()
			missing := p.UpFails(11, host, "--steer", way, "--ovs-run", p.Dir)
			if !strings.Contains(missing, "systemctl start openvswitch-switch") {
				t.Errorf("without a switch, pando up prints %q", missing)
			}
			dir := startSwitch(t, p, host)
			p.Up(host, "--steer", way, "--ovs-run", dir)
			web := p.Deploy(labtest.Echo("web", "scale: {min: 2}", "environment: {TEXT: here}"))
			ask := func(when string) {
				t.Helper()
				for _, from := range []string{labtest.Client, host} {
					p.Await("the service answers "+from+" "+when, func() (string, bool) {
						out := p.Run(from, "curl", "-sS", "--max-time", "2", "http://"+web.VIP+"/")
						return out.Text, out.Code == 0 && strings.Contains(out.Text, "here")
					})
				}
			}
			ask("at first")
			p.KillAgent(host)
			ask("without the agent")
			p.Up(host, "--steer", way, "--ovs-run", dir)
			ask("with a new agent")
			p.Must(host, "sh", "-ec", strings.ReplaceAll(
				`pid=$(cat @/ovs-vswitchd.pid); kill -9 $pid; tail --pid=$pid -f /dev/null`, "@", dir))
			runSwitch(p, host, dir)
			ask("after the death of the switch")
			p.Down(host)
		})
	}
}
