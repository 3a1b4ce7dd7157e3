package pando

import (
	"context"
	"fmt"
	"strings"
	"time"
)

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
	// Of is the service of the tenant whose volume it is. The instances then run on the home of that
	// service. "": the service's own.
	Of ServiceName `json:"of,omitempty"`
}

// Owner returns the service whose volume it is, for an instance of s.
func (v Volume) Owner(s ServiceKey) ServiceKey {
	if v.Of != "" {
		s.Name = v.Of
	}
	return s
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

// Ordinals reports whether each instance of the service has volumes or an endpoint of its own.
func (s Spec) Ordinals() bool {
	if len(s.Endpoints) > 0 {
		return true
	}
	for _, v := range s.Volumes {
		if !v.Shared {
			return true
		}
	}
	return false
}

// VolumeHome is the record of the host with the volumes of a removed service. A later deploy of the
// service starts there.
type VolumeHome struct {
	Service ServiceKey `json:"service"`
	Host    HostName   `json:"host"`
	At      time.Time  `json:"at"`             // of the removal
	Roll    *Roll      `json:"roll,omitempty"` // of a stateful service, which has no one Host
}

// Key returns the key of the record.
func (v VolumeHome) Key() Key { return VolumeHomeKey(v.Service) }

// VolumeHomeKey returns the key of the host with the volumes of a removed service.
func VolumeHomeKey(s ServiceKey) Key {
	return key(KindVolumes, string(s.Tenant), string(s.Name))
}

// VolumeQuery chooses volumes.
type VolumeQuery struct {
	Service ServiceKey // zero: of all services
	Name    string     // "": all volumes
	Measure bool       // also their sizes, for which their host reads every folder
}

// Wants reports whether a query chooses the volume of a service.
func (q VolumeQuery) Wants(s ServiceKey, name string) bool {
	return (q.Service.Name == "" || q.Service == s) && (q.Name == "" || q.Name == name)
}

// KeptVolume is a folder of a volume on a host: one line of `pando volume ls`.
type KeptVolume struct {
	Service ServiceKey `json:"service"`
	Name    string     `json:"name"`
	Part    string     `json:"part"` // an ordinal, or "shared"
	Host    HostName   `json:"host"`
	Path    string     `json:"path"` // on the host
	UID     uint32     `json:"uid"`  // the owner of its folder
	Bytes   int64      `json:"bytes,omitempty"`
	Files   int64      `json:"files,omitempty"`
	// Partial reports that the folder has more than the measured bytes and files.
	Partial bool `json:"partial,omitempty"`
	// Instances have the volume now. It comes from the records of the cluster.
	Instances []InstanceID `json:"instances,omitempty"`
	// Missing is the reason why the volumes of a host are unknown. Only Host has a value then.
	Missing string `json:"missing,omitempty"`
}

// Volumes keeps the volumes of one host. driver/process implements it with folders.
type Volumes interface {
	// KeptVolumes returns the volumes of this host, sorted by service, name and part.
	KeptVolumes(ctx context.Context, q VolumeQuery) ([]KeptVolume, error)
	// RemoveVolume deletes a volume of a service with all its parts. ErrConflict: an instance has
	// it. ErrNotFound: this host has no such volume.
	RemoveVolume(ctx context.Context, s ServiceKey, name string) error
}

// namedMax is the number of names that Few writes out.
const namedMax = 8

// Few returns the first names of a list as text, and the number of the others.
func Few(names []string) string {
	text := strings.Join(names[:min(len(names), namedMax)], ", ")
	if more := len(names) - namedMax; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
