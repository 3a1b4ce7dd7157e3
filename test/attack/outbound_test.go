package attack

import "strings"

// shareConnections looks at the rules of a host by which tenants share connections to other machines.
func (c city) shareConnections() {
	host := c.Hosts[1]
	c.Await("the tenants of both instances", func() (string, bool) {
		out := c.Must(host, "nft", "list", "map", "inet", "pando-shares", "chain-of4")
		return out, strings.Count(out, "jump tenant-") >= 2
	})
	if all := c.Run(host, "nft", "list", "ruleset"); all.Code != 0 {
		c.Errorf("nft cannot list the rules: %s", all.Text)
	}
}
