<?php
$kept = '/var/www/uploads/word';
if (isset($_FILES['word'])) {
	echo move_uploaded_file($_FILES['word']['tmp_name'], $kept) ? "stored\n" : "refused\n";
} else {
	echo is_file($kept) ? file_get_contents($kept) : "empty\n";
}
