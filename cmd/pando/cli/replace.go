package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"pando.run/pando"
)

// MayReplace returns an error if a command would write over a file that Pando did not write. own
// reports whether Pando wrote the file. With force any file is replaced, and a folder never.
func MayReplace(file string, force bool, own func(file string) bool) error {
	st, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at the file to write: %w", err)
	case st.IsDir():
		return fmt.Errorf("%w: %s is a folder; name a file in it", pando.ErrInvalid, file)
	case force && st.Mode().IsRegular():
		return nil
	case !st.Mode().IsRegular():
		return fmt.Errorf("%w: %s is not a plain file; name another file", pando.ErrExists, file)
	case st.Size() == 0 || own(file):
		return nil
	}
	return fmt.Errorf("%w: %s is there, and Pando did not write it; name another file, or add --force",
		pando.ErrExists, file)
}
