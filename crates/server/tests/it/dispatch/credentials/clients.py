"""Standard clients against the S3 endpoint: boto3, the AWS CLI and pyarrow. Prints what was done; fails loudly."""

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError
from pyarrow import fs

ENDPOINT, BUCKET = os.environ["S3_ENDPOINT"], os.environ["S3_BUCKET"]
SCRATCH, WRITE, READ = os.environ["S3_SCRATCH"], os.environ["S3_WRITE"], os.environ["S3_READ"]


def refused(code, call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        assert error.response["Error"]["Code"] in (code, "403"), error
        return
    raise AssertionError(f"{call} was not refused: {arguments}")


def with_boto3():
    # As it comes, and without the checksums that older releases did not send.
    path_style = Config(s3={"addressing_style": "path"}, signature_version="s3v4")
    for config in (path_style, path_style.merge(Config(request_checksum_calculation="when_required"))):
        s3 = boto3.client("s3", endpoint_url=ENDPOINT, config=config)
        s3.head_bucket(Bucket=BUCKET)
        s3.get_bucket_location(Bucket=BUCKET)
        key = f"{SCRATCH}boto/a b+ü.txt"
        etag = s3.put_object(Bucket=BUCKET, Key=key, Body=b"hello world")["ETag"]
        head = s3.head_object(Bucket=BUCKET, Key=key)
        assert (head["ContentLength"], head["ETag"]) == (11, etag), head
        assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"hello world"
        part = s3.get_object(Bucket=BUCKET, Key=key, Range="bytes=6-8")
        assert (part["Body"].read(), part["ContentRange"]) == (b"wor", "bytes 6-8/11")
        assert s3.get_object(Bucket=BUCKET, Key=key, Range="bytes=-5")["Body"].read() == b"world"
        refused("InvalidRange", s3.get_object, Bucket=BUCKET, Key=key, Range="bytes=11-")
        refused("PreconditionFailed", s3.put_object, Bucket=BUCKET, Key=key, Body=b"x", IfNoneMatch="*")
        for algorithm in ("CRC32", "SHA1", "SHA256"):
            s3.put_object(Bucket=BUCKET, Key=f"{SCRATCH}boto/sum", Body=b"sum", ChecksumAlgorithm=algorithm)
        s3.put_object(Bucket=BUCKET, Key=f"{SCRATCH}boto/empty", Body=b"")
        assert s3.get_object(Bucket=BUCKET, Key=f"{SCRATCH}boto/empty")["Body"].read() == b""

        data = os.urandom(12 << 20)
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
            s3.upload_file(file.name, BUCKET, f"{SCRATCH}boto/large", Config=parts)
        with tempfile.NamedTemporaryFile() as file:
            s3.download_file(BUCKET, f"{SCRATCH}boto/large", file.name, Config=parts)
            assert hashlib.sha256(open(file.name, "rb").read()).digest() == hashlib.sha256(data).digest()
        upload = s3.create_multipart_upload(Bucket=BUCKET, Key=f"{SCRATCH}boto/aborted")["UploadId"]
        s3.upload_part(Bucket=BUCKET, Key=f"{SCRATCH}boto/aborted", UploadId=upload, PartNumber=1, Body=b"x")
        parts = s3.list_parts(Bucket=BUCKET, Key=f"{SCRATCH}boto/aborted", UploadId=upload)["Parts"]
        assert [(part["PartNumber"], part["Size"]) for part in parts] == [(1, 1)], parts
        s3.abort_multipart_upload(Bucket=BUCKET, Key=f"{SCRATCH}boto/aborted", UploadId=upload)
        refused("NoSuchKey", s3.get_object, Bucket=BUCKET, Key=f"{SCRATCH}boto/aborted")

        for n in range(7):
            s3.put_object(Bucket=BUCKET, Key=f"{SCRATCH}boto/list/{n // 3}/{n}", Body=b"x")
        pages = s3.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{SCRATCH}boto/list/", PaginationConfig={"PageSize": 2}
        )
        keys = [entry["Key"] for page in pages for entry in page["Contents"]]
        assert keys == [f"{SCRATCH}boto/list/{n // 3}/{n}" for n in range(7)], keys
        listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{SCRATCH}boto/list/", Delimiter="/")
        names = [entry["Prefix"] for entry in listed["CommonPrefixes"]]
        assert names == [f"{SCRATCH}boto/list/{n}/" for n in range(3)], names
        listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{SCRATCH}boto/a b")
        assert [entry["Key"] for entry in listed["Contents"]] == [key], listed

        url = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=60)
        assert urllib.request.urlopen(url).read() == b"hello world"

        # Outside the scope, or not for this use.
        refused("AccessDenied", s3.get_object, Bucket=BUCKET, Key="elsewhere/x")
        refused("AccessDenied", s3.put_object, Bucket=BUCKET, Key="elsewhere/x", Body=b"x")
        refused("AccessDenied", s3.get_object, Bucket=BUCKET, Key=f"{SCRATCH[:-1]}-evil/x")
        refused("AccessDenied", s3.list_objects_v2, Bucket=BUCKET)
        refused("AccessDenied", s3.list_objects_v2, Bucket=BUCKET, Prefix=SCRATCH[:-1])
        refused("AccessDenied", s3.list_objects_v2, Bucket="other")
        s3.put_object(Bucket=BUCKET, Key=f"{WRITE}x", Body=b"x")
        refused("AccessDenied", s3.get_object, Bucket=BUCKET, Key=f"{WRITE}x")
        refused("AccessDenied", s3.delete_object, Bucket=BUCKET, Key=f"{WRITE}x")
        assert s3.get_object(Bucket=BUCKET, Key=f"{READ}input")["Body"].read() == b"input"
        refused("AccessDenied", s3.put_object, Bucket=BUCKET, Key=f"{READ}input", Body=b"x")
        copy = {"Bucket": BUCKET, "Key": "elsewhere/x"}
        refused("NotImplemented", s3.copy_object, Bucket=BUCKET, Key=f"{SCRATCH}copy", CopySource=copy)

        objects = [{"Key": key}, {"Key": f"{WRITE}x"}]
        answer = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
        assert [entry["Key"] for entry in answer["Deleted"]] == [key], answer
        assert [entry["Code"] for entry in answer["Errors"]] == ["AccessDenied"], answer
        s3.delete_object(Bucket=BUCKET, Key=f"{SCRATCH}boto/large")
    print("boto3")


def aws(*arguments, fails=False):
    aws = os.path.join(os.path.dirname(sys.executable), "aws")
    done = subprocess.run([aws, "--endpoint-url", ENDPOINT, *arguments], capture_output=True, text=True)
    assert (done.returncode != 0) == fails, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr


def with_cli():
    place = f"s3://{BUCKET}/{SCRATCH}cli"
    with tempfile.TemporaryDirectory() as folder:
        for name, size in (("small", 10), ("large", 9 << 20)):
            with open(f"{folder}/{name}", "wb") as file:
                file.write(os.urandom(size))
        aws("s3", "cp", "--recursive", folder, f"{place}/")
        assert "large" in aws("s3", "ls", f"{place}/")
        aws("s3", "cp", f"{place}/large", f"{folder}/back")
        assert open(f"{folder}/back", "rb").read() == open(f"{folder}/large", "rb").read()
    assert "AccessDenied" in aws("s3", "ls", f"s3://{BUCKET}/elsewhere/", fails=True)
    assert "403" in aws("s3", "cp", f"s3://{BUCKET}/elsewhere/x", "-", fails=True)
    aws("s3", "rm", "--recursive", f"{place}/")
    assert "large" not in aws("s3", "ls", f"s3://{BUCKET}/{SCRATCH}")
    print("aws")


def with_pyarrow():
    s3 = fs.S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        session_token=os.environ["AWS_SESSION_TOKEN"],
        endpoint_override=ENDPOINT.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
    )
    table = pa.table({"n": list(range(200_000)), "text": [f"row {n}" for n in range(200_000)]})
    path = f"{BUCKET}/{SCRATCH}arrow/rows.parquet"
    pq.write_table(table, path, filesystem=s3)
    assert pq.read_table(path, filesystem=s3, columns=["n"]).column("n").to_pylist()[-1] == 199_999
    found = s3.get_file_info(fs.FileSelector(f"{BUCKET}/{SCRATCH}arrow", recursive=True))
    assert [info.base_name for info in found if info.is_file] == ["rows.parquet"], found
    with s3.open_output_stream(f"{BUCKET}/{WRITE}direct.bin") as out:
        out.write(b"x" * (11 << 20))
    try:
        s3.open_input_stream(f"{BUCKET}/elsewhere/x").read()
        raise AssertionError("not refused")
    except OSError as error:
        assert "ACCESS_DENIED" in str(error).upper().replace(" ", "_"), error
    s3.delete_file(path)
    print("pyarrow")


with_boto3()
with_cli()
with_pyarrow()
