#!/bin/sh
# Run once, by the image of PostgreSQL, when the database is made: two databases with an owner each, so that a role that
# reads Dagster's runs cannot read the ledger. They must be separate: both keep the version of their tables under one name.
set -eu
for name in dpsynth dagster; do
    export ROLE="$name" PASSWORD_FILE="${SECRETS:-/run/secrets}/${name}_password"
    test -s "$PASSWORD_FILE"
    psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\set name `echo "$ROLE"`
\set password `cat "$PASSWORD_FILE"`
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE ALL ON DATABASE :"name" FROM PUBLIC;
SQL
done
