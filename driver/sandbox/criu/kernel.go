package criu

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// kernelFile is the file of CRIU with facts about the kernel. It is in the folder of the log for a
// freeze, and in the /run of the sandbox for a thaw. CRIU writes it on a tmpfs only.
const kernelFile = "criu.kdat"

// kernelBytesMax bounds the file. CRIU 4.2 writes about 1 KiB.
const kernelBytesMax = 64 << 10

// scratch returns a folder in memory for the log of a CRIU, or "" for the usual one.
func scratch() string {
	for _, dir := range []string{"/run", "/dev/shm"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && int64(st.Type) == unix.TMPFS_MAGIC {
			return dir
		}
	}
	return ""
}

// facts is the kept knowledge about the running kernel for one direction of a CRIU.
type facts struct {
	kept string   // its file, or "" to keep none
	in   *os.File // the folder in which CRIU looks for it
	has  bool     // CRIU was given the file
}

// factsFor gives a CRIU the kept facts. The folder in belongs to root, or is sticky, so no program
// replaces a file of root there. A file that a program left is removed.
func (t Tool) factsFor(direction string, in *os.File) *facts {
	f := &facts{in: in}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	boot = bytes.TrimSpace(boot)
	if err != nil || t.Cache == "" || len(boot) != bootBytes {
		return f
	}
	f.kept = filepath.Join(t.Cache, "criu-"+direction+"-"+string(boot))
	at := int(in.Fd())
	if unix.Unlinkat(at, kernelFile, 0) != nil && exists(at) {
		f.kept = ""
		return f
	}
	text, err := os.ReadFile(f.kept)
	if err != nil {
		return f
	}
	fd, err := unix.Openat(at, kernelFile,
		unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return f
	}
	file := os.NewFile(uintptr(fd), kernelFile)
	defer file.Close()
	_, err = file.Write(text)
	f.has = err == nil
	return f
}

func exists(at int) bool {
	var st unix.Stat_t
	return unix.Fstatat(at, kernelFile, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// keep takes the file from the folder, and keeps it for the next CRIU after a success. Only the
// file of an owner counts: that of CRIU.
func (f *facts) keep(ok bool, owner int) {
	if f == nil {
		return
	}
	defer f.in.Close()
	at := int(f.in.Fd())
	defer func() { _ = unix.Unlinkat(at, kernelFile, 0) }()
	if !ok || f.has || f.kept == "" {
		return
	}
	fd, err := unix.Openat(at, kernelFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|
		unix.O_CLOEXEC, 0)
	if err != nil {
		return // not on a tmpfs
	}
	file := os.NewFile(uintptr(fd), kernelFile)
	defer file.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != owner {
		return
	}
	text, err := io.ReadAll(io.LimitReader(file, kernelBytesMax+1))
	if err != nil || len(text) > kernelBytesMax || os.MkdirAll(filepath.Dir(f.kept), 0o700) != nil {
		return
	}
	former, _ := filepath.Glob(f.former())
	for _, file := range former {
		_ = os.Remove(file) // of an earlier boot
	}
	if os.WriteFile(f.kept+".new", text, 0o600) == nil {
		_ = os.Rename(f.kept+".new", f.kept)
	}
}

// former matches the kept files of one direction.
func (f *facts) former() string {
	name := filepath.Base(f.kept)
	return filepath.Join(filepath.Dir(f.kept), name[:len(name)-bootBytes]+"*")
}

// bootBytes is the length of the name of a boot.
const bootBytes = 36

// runFolder opens the /run of a sandbox. No link in it leads outside.
func runFolder(inside int) (*os.File, error) {
	root, err := unix.Open("/proc/"+strconv.Itoa(inside)+"/root",
		unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, "run", &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "run"), nil
}
