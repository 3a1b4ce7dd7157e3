package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"pando.run/pando"
)

// OfFile explains the error of a command with a file that a user named: a file that is not there, or
// a folder. next is what to do then. Other errors stay as they are.
func OfFile(doing, file, next string, err error) error {
	var at *fs.PathError
	named := errors.As(err, &at) && at.Path == file
	switch {
	case named && errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w: there is no file %s; %s", doing, pando.ErrNotFound, file, next)
	case named && errors.Is(err, syscall.EISDIR):
		return fmt.Errorf("%s: %w: %s is a folder; %s", doing, pando.ErrInvalid, file, next)
	}
	return err
}

// ReadFile reads a file that a user named. next is what to do if there is none, or if it is empty.
func ReadFile(doing, file, next string) ([]byte, error) {
	text, err := os.ReadFile(file)
	switch {
	case err != nil && OfFile(doing, file, next, err) == err:
		return nil, fmt.Errorf("%s: %w", doing, err)
	case err != nil:
		return nil, OfFile(doing, file, next, err)
	case len(text) == 0:
		return nil, fmt.Errorf("%s: %w: the file %s is empty; %s", doing, pando.ErrInvalid, file, next)
	}
	return text, nil
}
