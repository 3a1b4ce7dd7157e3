package process

import (
	"pando.run/pando"
)

// hostname returns the name of the machine that an instance sees. Programs name their data by it,
// so it stays for instances with a volume of their own, over all their starts.
func hostname(spec pando.SandboxSpec) string {
	i := spec.Instance
	switch beside := i.Run != nil && i.Run.Beside; {
	case spec.Spec.Hostname != "":
		return spec.Spec.Hostname
	case i.Ordinal > 0 && !beside:
		return pando.OrdinalName(spec.Spec.Name, i.Ordinal)
	}
	return string(i.ID)
}
