package process

import (
	"debug/buildinfo"
	"path/filepath"
	"runtime/debug"
)

// shimName is the program that is a shim and nothing else. It lies beside the pando binary.
const shimName = "pando-shim"

// ShimCommand returns the command of a shim, for Config.Self. It is the program pando-shim beside
// the pando binary if both are of one build, because that starts sooner and takes less memory. Else
// it is the binary itself.
func ShimCommand(pando string) []string {
	small := filepath.Join(filepath.Dir(pando), shimName)
	own, known := debug.ReadBuildInfo()
	other, err := buildinfo.ReadFile(small)
	if err != nil || !known || !sameBuild(own, other) {
		return []string{pando}
	}
	return []string{small}
}

// sameBuild reports whether two programs were made from the same sources by the same compiler. A
// shim of another release could lack a request of its agent.
func sameBuild(a, b *debug.BuildInfo) bool {
	return a.GoVersion == b.GoVersion && a.Main.Version == b.Main.Version &&
		setting(a, "vcs.revision") == setting(b, "vcs.revision") &&
		setting(a, "GOARCH") == setting(b, "GOARCH")
}

func setting(of *debug.BuildInfo, name string) string {
	for _, s := range of.Settings {
		if s.Key == name {
			return s.Value
		}
	}
	return ""
}
