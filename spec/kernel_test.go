package spec

import (
	"strings"
	"testing"

	"pando.run/pando"
)

// An instance has the settings of its network and of its shared memory for itself, as in Docker. Those
// of the host, and those that Pando itself needs, are refused.
func TestWordsForTheKernelAreChecked(t *testing.T) {
	for text, want := range map[string]string{
		"sysctls: {net.core.somaxconn: 1024, kernel.sem: 250 32000 100 128, fs.mqueue.msg_max: 20}": "",
		"sysctls: [net.ipv6.conf.all.disable_ipv6=1]":                                               "",
		"sysctls: {vm.swappiness: 1}":                                                               "setting of the whole host",
		"sysctls: {kernel.hostname: x}":                                                             "setting of the whole host",
		"sysctls: {net.ipv4.conf.eth0.rp_filter: 1}":                                                "is Pando's",
		"sysctls: {net.ipv4.conf.all.proxy_arp: 1}":                                                 "is Pando's",
		"sysctls: {net.ipv4.tcp_congestion_control: bbr}":                                           "loads a module",
		"sysctls: {net.mptcp.scheduler: x}":                                                         "loads a module",
		`sysctls: {"net.core/../../kernel/x": "1"}`:                                                 "setting of the whole host",
		`sysctls: {net.core.somaxconn: ""}`:                                                         "one line",
		`ulimits: {nofile: "1024:4096", core: -1}`:                                                  "",
		`ulimits: {nofile: "4096:1024"}`:                                                            "larger than the second",
		"ulimits: {files: 7}":                                                                       "want one of",
		"ulimits: {nofile: many}":                                                                   "such as 1024:4096",
		`group_add: [video, 2000]`:                                                                  "",
		`group_add: ["a b"]`:                                                                        "group",
	} {
		s, err := Parse("x.yaml", []byte("name: x\nimage: x\n"+text+"\n"), t.TempDir())
		if got := ""; err != nil {
			got = err.Error()
			if want == "" || !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %q", text, got, want)
			}
		} else if want != "" {
			t.Errorf("%s is taken: %+v", text, s)
		}
	}
	if _, _, err := pando.ReadUlimit("1:2:3"); err == nil {
		t.Error("three numbers are taken")
	}
}
