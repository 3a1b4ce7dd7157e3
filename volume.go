package pando

import "fmt"

// VolumesMax bounds the volumes of one spec, and its folders in memory.
const VolumesMax = 16

// Volume is a folder of a service that outlives its instances. The service's home has it.
//
// A volume of its own belongs to one ordinal: no two instances ever have it at the same time. A
// shared volume is the same folder in all instances.
type Volume struct {
	Name     string `json:"name"`
	Path     string `json:"path"` // in the instance
	Shared   bool   `json:"shared,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Part returns the name of the folder of an instance with an ordinal.
func (v Volume) Part(ordinal int) string {
	if v.Shared {
		return "shared"
	}
	return fmt.Sprint(ordinal)
}

// Tmpfs is an empty folder in memory that ends with its instance.
type Tmpfs struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes,omitempty"` // TmpfsBytes
	Mode  uint32 `json:"mode,omitempty"`  // 1777 octal
}

// TmpfsBytes bounds a folder in memory without a size in its spec.
const TmpfsBytes = 64 << 20

// Binds returns the folders of the host that the instances see at a path of their own, or in an
// image. At is set in each.
func (s Spec) Binds() (out []Folder) {
	for _, f := range s.Folders {
		if f.At == "" && s.Image.Reference != "" {
			f.At = f.Path
		}
		if f.At != "" {
			out = append(out, f)
		}
	}
	return out
}

// Ordinals reports whether each instance of the service has volumes of its own.
func (s Spec) Ordinals() bool {
	for _, v := range s.Volumes {
		if !v.Shared {
			return true
		}
	}
	return false
}
