// Package view knows what the program of an instance sees of its host's files. The driver reads it to
// decide what to show, the shim to show it, and both to name what is missing.
//
// The view is a root of its own in memory, with a list of the host's folders and nothing else of its
// files. The shim mounts the folders of the system ahead of need. With the program come its own
// folders, and the shim gives up the host's root.
package view

import (
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// IsBelow reports whether a path is a folder or lies below it.
func IsBelow(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// IsVisible reports whether every instance sees a path.
func IsVisible(path string) bool {
	return slices.ContainsFunc(SystemFolders, func(dir string) bool { return IsBelow(dir, path) })
}

// SystemFolders hold programs, libraries and their data. Packages fill them for every user.
var SystemFolders = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/gnu",
	"/var/www", "/var/cache/fontconfig", "/var/lib/ca-certificates",
}

// PrivateFolders are the folders where people and programs of the host keep their own files, above all
// sockets. An instance has its own, empty ones. Its working directory is visible even if it lies in
// one of them (settle).
var PrivateFolders = []string{"/tmp", "/var/tmp", "/run", "/root", "/home"}

// InVolume reports whether a path of a program is in one of its volumes or folders in memory.
func InVolume(p wire.Program, path string) bool {
	return slices.ContainsFunc(p.Volumes, func(v wire.Volume) bool { return IsBelow(v.At, path) }) ||
		slices.ContainsFunc(p.Tmpfs, func(t pando.Tmpfs) bool { return IsBelow(t.Path, path) })
}
