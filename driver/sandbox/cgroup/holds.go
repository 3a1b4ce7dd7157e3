package cgroup

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Holds implements pando.Cgroup. The kernel lists a process's group in every hierarchy, and all
// hierarchies of this group must match. In a container, the listed name may begin with the
// container's own group.
func (g *Group) Holds(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	want := len(g.folders())
	for line := range strings.Lines(string(text)) {
		_, line, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		names, path, _ := strings.Cut(line, ":")
		if path != "/"+g.name && !strings.HasSuffix(path, "/"+g.name) {
			continue
		}
		for name := range strings.SplitSeq(names, ",") {
			if g.v2 != "" && name == "" || slices.Contains(controllers, name) && g.v1[name] != "" {
				want--
			}
		}
	}
	return want == 0
}
